"""Shakespeare's works in the form of Project Gutenberg's edition of 1994, cut into roles."""

from cabafl.data.gutenberg import roles

NOTE = """<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS OF WILLIAM
SHAKESPEARE IS COPYRIGHT 1990-1993 BY WORLD LIBRARY, INC.>>
"""

EDITION = f"""This is the 100th Etext file presented by Project Gutenberg, and
is presented in cooperation with World Library, Inc.

  ANYBODY. Nothing before the first play counts.

1609

THE SONNETS

by William Shakespeare



                     1
  From fairest creatures we desire increase,
    But as the riper should by time decease,

THE END

{NOTE}

1603

ALLS WELL THAT ENDS WELL

by William Shakespeare


Dramatis Personae

  KING OF FRANCE
  BERTRAM, Count of Rousillon

ACT I. SCENE 1.
Rousillon. The COUNT'S palace

Enter BERTRAM and the COUNTESS, all in black

  COUNTESS. In delivering my son from me, I bury a second husband.
  BERTRAM. And I in going, madam, weep o'er my father's death
    anew; but I must attend his Majesty's command, to whom
    I   am now in ward.
                                             [Exit BERTRAM]
{NOTE}
  COUNTESS. He hath abandon'd his physicians, madam;
    with what hope?
  Countess. This is said by the same role.
  LAFEU. Once.
    Twice.

THE END

1593

THE COMEDY OF ERRORS

by William Shakespeare


ACT I. SCENE 1

Enter the DUKE OF EPHESUS
AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.

DUKE. Merchant of Syracuse, plead no more;
I am not partial to infringe our laws.
{NOTE}
The note has ended the speech.
DUKE. Again.
ACT II. SCENE 1
Nobody says this.
AEGEON. Yet this my comfort.
Exit

{NOTE}

1609

A LOVER'S COMPLAINT

by William Shakespeare

  POET. One role is no play.
    More.
    More.

End of this Etext of The Complete Works of William Shakespeare
"""


def test_roles_are_cut_by_the_rules_of_the_edition() -> None:
    assert roles(EDITION) == {
        "ALLS_WELL_THAT_ENDS_WELL_COUNTESS": [
            "In delivering my son from me, I bury a second husband.",
            "He hath abandon'd his physicians, madam;",
            "with what hope?",
            "This is said by the same role.",
        ],
        "ALLS_WELL_THAT_ENDS_WELL_BERTRAM": [
            "And I in going, madam, weep o'er my father's death",
            "anew; but I must attend his Majesty's command, to whom",
            "I am now in ward.",
            "[Exit BERTRAM]",
        ],
        "THE_COMEDY_OF_ERRORS_AEGEON": [
            "Proceed, Solinus, to procure my fall,",
            "And by the doom of death end woes and all.",
            "Yet this my comfort.",
            "Exit",
        ],
        "THE_COMEDY_OF_ERRORS_DUKE": [
            "Merchant of Syracuse, plead no more;",
            "I am not partial to infringe our laws.",
            "Again.",
        ],
    }


def test_line_ends_of_either_system() -> None:
    assert roles(EDITION.replace("\n", "\r\n")) == roles(EDITION)


def test_another_text_has_no_roles() -> None:
    assert roles("") == {}
    assert roles("by William Shakespeare\nby William Shakespeare\n  A. b\n") == {}
